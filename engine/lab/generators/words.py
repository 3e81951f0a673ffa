"""Words of the generated tasks: adjectives, nouns and names that the bundled model was not trained on.

Its training drew keys from the other half of the same lists (commit b6dfeee2).
"""

from __future__ import annotations

import random

_ADJECTIVES = """
abrupt agile airy alert ample angry annual anxious arid ashen autumn aware bare beige bent bland blind blunt
brief brisk broken brown calm cheap chief civil clear clever coarse cold common cordial costly crisp curly
dark devout digital distant double dry dull eager early easy elegant empty entire equal exotic extra fair
famous final fixed flat foreign free frosty full fuzzy gaudy gifted gloomy golden graceful grave gray green
gritty happy hardy harsh heavy hoarse honest humble hungry ideal intense jolly juicy keen lasting lean level
light linear little lone loose loyal mad meek merry mild minor misty modern moist muddy mute narrow neat
needy nimble noisy numb open oral ornate outer pale paper patient polite pretty proud purple quick rapid
ready red regal rigid ripe robust rocky rosy round rusty scarlet secret senior shallow silent silver single
sleepy slim slow smart solar somber sour spicy stale steady sticky still strict sturdy sudden sweet tall
tart tender thirsty tidy tight tiny total true trusty upper useful vague vast warm wealthy western whole
wild winter witty young
"""
_NOUNS = """
acorn almond anchor apron arch arrow atlas badge balcony ballad banana barrel basin battery beacon beard
belt bicycle biscuit blanket blossom boat bonnet boot bottle box branch brick brook bucket bugle button
cabin cactus camera candle canoe canyon caravan carpet castle cathedral cave cellar chain chalk cherry
chimney circle clay clock cloud clover coat coffee column compass copper cotton cradle crane crayon cricket
crown cup cushion daisy dancer deck deer desert dinner doctor donkey dragon dress easel editor elbow farmer
feather fence ferry field finger flame flower flute fork fossil fox frame garlic geyser glacier glass glove
grape guitar hammer hat hazel helmet herb hill hood horn hotel house igloo inch inn island jacket jar jewel
judge key king kite knee knot lake lantern laurel lawn leaf lemon lime lizard lock loft lotus lumber magnet
mango maple market mast meadow melon moon moss mountain mushroom net nickel notebook oak oasis ocean olive
orchard oven oyster page panda parcel pasture peanut pebble pepper piano pigeon pilot pipe planet plaza plum
pocket pony poppy potato prairie prince puppy quail quarry quilt radio rail raven rice road rope rudder
salmon sandal satchel scooter shadow sheep shell ship shore shovel sketch sky snail sofa spark spoon squash
staff station stem storm straw summit sunset swallow table teacher tent thimble thread thunder toast tower
trail tree tunnel umbrella valley vessel village violin voyage wall water wave weaver whale wheat whistle
window wing wood wool wreath yarn zebra
"""
_PEOPLE = """
Albert Beatrice Cecily Conrad Edmund Elias Felix Gideon Harold Ingrid Jasper Julian Lavinia Lydia Martha
Nathan Octavia Pauline Quentin Rufus Silas Theodore Victor Walter
"""
_ONSETS = "b br c ch cl d dr f fl g gr h j k l m n p pr qu r s sh sl st t th tr v w y z"
_VOWELS = "a e i o u ai ea oo ou"
_CODAS = ("", "", "n", "r", "l", "s", "t", "m", "ck", "nd", "st", "ng")
ADJECTIVES, NOUNS, PEOPLE, ONSETS, VOWELS = (
    tuple(words.split()) for words in (_ADJECTIVES, _NOUNS, _PEOPLE, _ONSETS, _VOWELS)
)


def invented(rng: random.Random) -> str:
    """A made-up word of two or three syllables."""
    return "".join(
        rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(_CODAS) for _ in range(rng.choice((2, 2, 3)))
    )


def key_words(rng: random.Random) -> str:
    """An ``adjective-noun`` key."""
    return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"
