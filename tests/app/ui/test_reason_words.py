"""Reasons that an older version wrote are shown with the pages' signs. No GPU."""

from routesparse.app.ui.reason_words import shown


def test_formulas_as_code_become_signs_and_what_is_written_today_stays():
    old = "least total risk under T_l: g >= 0.925, certificate 0.931 >= tau 0.900 (tau_layer 0.300)"
    new = "least total risk under Tℓ: g ≥ 0.925, certificate 0.931 ≥ τ 0.900 (τ layer 0.300)"
    assert shown(old) == new == shown(new)
    assert shown("1 of 2, 395 us.") == "1 of 2, 395 µs." and shown("tell us 5") == "tell us 5"
    assert shown("restaurant") == "restaurant"
    assert shown("dearer by 1073 µs") == "dearer by 1,073 µs"


def test_a_head_that_was_expanded_says_from_what_in_the_pages_names():
    """The first reason that a newcomer reads, on Home."""
    old = "expanded 2x from vertical_slash 967 columns + 18 slash bands of 64 (certificate 0.896 < tau 0.900); now "
    assert shown(old + "certificate 0.930 >= tau 0.900") == (
        "the first choice, vertical-slash with 967 columns + 18 slash bands of 64, failed (certificate 0.896 < "
        "τ 0.900) and had to grow; after 2 steps: certificate 0.930 ≥ τ 0.900"
    )
    assert shown("expanded 1x from <b> (x) y") == "expanded 1x from <b> (x) y"


def test_a_floor_says_why_it_and_not_a_cheaper_one():
    rest = "g 0.093, certificate 0.539 ≥ τ 0.250"
    told = f"the floor at price 0.5, since no cheaper candidate loses little enough: {rest}"
    assert shown(f"the floor at price 0.5: {rest}") == told
    cheaper = "cheaper than the floor at price 0.5 and loses at most 0.5 times as much, g ≥ 0.928: g 0.933"
    assert shown(cheaper) == cheaper
