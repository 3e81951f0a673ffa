"""Key words of the generated tasks: plain English adjectives and nouns, half for training, half for evaluation.

`adjectives("train")` and `adjectives("eval")` are disjoint, so are the nouns; a test holds it. Training also
draws made-up words (`invented`), so that a model learns to copy keys it has never seen.
"""

from __future__ import annotations

import random
from typing import Literal, get_args

WordSet = Literal["train", "eval"]

_ADJECTIVES = """
able abrupt acidic agile airy alert alpine ample amused ancient angry annual anxious apt arctic arid ashen
astute autumn aware azure bald bare basic beige bent bitter bland blank bleak blind blond blue blunt bold
brave brief bright brisk broad broken bronze brown busy calm candid careful casual cheap cheery chief chilly
civil classic clean clear clever close cloudy clumsy coarse cold common compact cool coral cordial costly
cozy crafty crimson crisp crooked curious curly damp daring dark dear deep dense devout digital dim direct
distant dizzy double drab dry dull dusty eager early earnest eastern easy elastic elder elegant empty entire
equal exact exotic expert extra fair faint famous fancy fast feeble fierce final fine firm fixed flat fluffy
fond foreign formal fragile frank free fresh frosty frozen full funny fuzzy gaudy gentle giant gifted glad
gloomy glossy golden good graceful grand grave gray great green grim gritty gross handy happy hardy harsh
hasty hazy heavy helpful hidden hoarse hollow honest huge humble humid hungry icy ideal idle immense inner
intense ironic ivory jagged joint jolly joyful juicy keen kind large lasting late lavish lazy lean leafy
legal level light limp linear little lively lofty lone long loose lost loud loyal lucky lunar mad magic
major marble mature meek mellow mental merry mighty mild minor misty modern modest moist muddy mute narrow
native neat needy new nimble noble noisy normal novel numb oblong odd open oral orange ornate outer oval
pale paper patient perfect plain pleased plump polite poor precise pretty prime private proud pure purple
quaint quick quiet rapid rare raw ready real red regal rich rigid ripe robust rocky rosy rough round royal
rural rusty sandy scarlet secret senior serious shady shallow sharp shiny short shy silent silky silver
simple single sleepy slim slow small smart smooth snowy soft solar solid somber sour spare spicy stable
stale steady steep stern sticky stiff still strict strong sturdy subtle sudden sunny superb sweet swift tall
tame tart tasty tender tense thick thin thirsty tidy tight tiny tired topaz total tough tropic true trusty
upper urban useful usual vague valid vast velvet vivid warm wary watery weak wealthy weary western wet white
whole wide wild windy winter wise witty wooden woven yellow young zealous
"""

_NOUNS = """
acorn actor airport album alley almond anchor ankle antenna apple apron arch armor arrow artist atlas attic
avenue badge baker balcony ballad bamboo banana banner barn barrel basin basket battery beach beacon bean
beard beaver bell belt bench berry bicycle bird biscuit blanket blossom board boat bonnet book boot border
bottle bowl box bracelet branch brick bridge brook broom brush bucket buffalo bugle button cabbage cabin
cable cactus cake camel camera candle cannon canoe canvas canyon captain caravan carpet carrot castle
cathedral cattle cave cedar cellar cello chain chair chalk chapel cherry chest chimney church circle citrus
clay clerk cliff clock cloud clover coast coat cobbler coffee coin collar column comet compass copper corner
cottage cotton cradle crane crater crayon creek cricket crown crystal cup curtain cushion cymbal daisy
dancer deck deer desert desk diamond dinner doctor dolphin donkey door dragon drawer dress drum duck eagle
easel echo editor elbow elm engine envelope falcon farmer feather fence fern ferry fiddle field finger flag
flame flask flour flower flute forest fork fossil fountain fox frame garden garlic gate geyser ginger
glacier glass globe glove goat grape grass gravel guitar gull hammer harbor harp hat hawk hazel hedge helmet
herb hill hinge honey hood hoof horn horse hotel hour house igloo inch ink inn island jacket jar jasmine
jewel judge jug jungle kettle key king kitchen kite kitten knee knife knot ladder lake lamp lantern laurel
lawn leaf lemon letter library lily lime lion lizard lobster lock locket loft lotus lumber magnet mango
mantle maple market mask mast meadow medal melon mill mirror mitten monkey moon morning moss motor mountain
mouse museum mushroom music nail needle nest net nickel night notebook nut oak oar oasis ocean olive onion
opera orchard organ otter oven owl oyster paddle page palace palm panda panel parade parcel parrot pasture
path peach peanut pearl pebble pencil pepper piano picture pigeon pillow pilot pine pipe planet plate plaza
plum pocket poet pond pony poppy porch potato pottery prairie prince pulley puppy puzzle quail quarry queen
quilt rabbit radio raft rail rain raven reef ribbon rice ring river road robin rock roof rope rose rudder
sailor salmon sand sandal satchel scarf school scooter season seed shadow sheep shell shelf ship shoe shore
shovel sister sketch skirt sky sled sleeve slipper snail sofa song spark sparrow spider spoon spring squash
stable staff stage star station statue stem stone storm stove straw street suitcase summit sunset swallow
swan table tailor teacher temple tent thimble thistle thread throne thunder ticket tiger timber toast tower
town trail train tree trumpet tulip tunnel turtle umbrella uncle valley vase vessel village vine violin vest
voyage wagon wall walnut water wave weaver wedge whale wharf wheat wheel whistle willow window wing winner
wolf wood wool wreath yard yarn zebra zipper
"""

_ONSETS = [
    "b",
    "br",
    "c",
    "ch",
    "cl",
    "d",
    "dr",
    "f",
    "fl",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pr",
    "qu",
    "r",
    "s",
    "sh",
    "sl",
    "st",
    "t",
    "th",
    "tr",
    "v",
    "w",
    "y",
    "z",
]
_VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "oo", "ou"]
_CODAS = ["", "", "n", "r", "l", "s", "t", "m", "ck", "nd", "st", "ng"]


def _part(words: str, part: WordSet) -> tuple[str, ...]:
    # One ranking for adjectives and nouns together: a word that is both stays in one half. Neighbours in the
    # alphabet go to different halves, so both halves have the same make-up.
    ranks = {word: rank for rank, word in enumerate(sorted(set((_ADJECTIVES + _NOUNS).split())))}
    return tuple(word for word in sorted(set(words.split())) if ranks[word] % 2 == (part == "eval"))


ADJECTIVES: dict[str, tuple[str, ...]] = {part: _part(_ADJECTIVES, part) for part in get_args(WordSet)}
NOUNS: dict[str, tuple[str, ...]] = {part: _part(_NOUNS, part) for part in get_args(WordSet)}


def invented(rng: random.Random) -> str:
    """A made-up word of two or three syllables."""
    return "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.choice((2, 2, 3)))
    )


def key_words(rng: random.Random, part: WordSet, invented_share: float = 0.0) -> str:
    """One `adjective-noun` key of the given half; with `invented_share`, sometimes two made-up words."""
    if invented_share and rng.random() < invented_share:
        return f"{invented(rng)}-{invented(rng)}"
    return f"{rng.choice(ADJECTIVES[part])}-{rng.choice(NOUNS[part])}"
