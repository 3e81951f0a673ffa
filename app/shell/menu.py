"""The menu beside every page: Streamlit's own, flat, with the groups' headings drawn before their first page.

Streamlit's sections break the list that screen readers count: their items have no list as parent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st
from streamlit.navigation.page import StreamlitPage

_ITEM = '[data-testid="stSidebarNavItems"] > li:nth-child({place})::before {{ content: "{heading}"; }}'


def draw(groups: Mapping[str, Sequence[StreamlitPage]], unlisted: StreamlitPage) -> StreamlitPage:
    """Draw the pages under their groups' headings, and return the page that the address names.

    unlisted: a page with an address and no place in the menu.
    """
    pages = [page for group in groups.values() for page in group]
    places = {heading: pages.index(group[0]) + 1 for heading, group in groups.items()}
    rules = [_ITEM.format(place=place, heading=heading) for heading, place in places.items()]
    st.html(f"<style>{' '.join(rules)}</style>")
    return st.navigation([*pages, unlisted], expanded=True)
