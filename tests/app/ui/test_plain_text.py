"""A prompt's text as HTML: what is hostile stays text. No GPU."""

from routesparse.app.ui.plain_text import block


def test_markup_and_hidden_characters_of_a_prompt_stay_text():
    html = block("<script>a</script>\n\u202egnp.exe\u2028b", 'a "label"')
    assert "<script>" not in html and "&lt;script&gt;a&lt;/script&gt;\n" in html
    assert "⟨U+202E⟩gnp.exe⟨U+2028⟩b" in html
    assert 'aria-label="a &quot;label&quot;"' in html and 'tabindex="0"' in html
