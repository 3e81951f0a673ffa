"""The page style: one typographic scale, quiet colours, dense but calm tables; light and dark by the browser."""

from __future__ import annotations

import streamlit as st

_STYLE = """
<style>
.stApp {
  --rs-panel: light-dark(#ffffff, #1b1f23); --rs-ink: light-dark(#1d2329, #e8eaec);
  --rs-mute: light-dark(#59626c, #a3adb7); --rs-line: light-dark(#e3e6e8, #2b3137);
  --rs-accent: light-dark(#1f5fbf, #6aa5ee); --rs-warn: light-dark(#a83e1a, #f08a5d);
  --rs-pick: light-dark(#eaf1fa, #202c3a);
  --rs-red: light-dark(#b3261e, #ff8a80); --rs-amber: light-dark(#8a5a00, #e9b44c);
  --rs-green: light-dark(#1b6e3c, #6fcf97);
}
.stApp, .stApp button, .stApp input { font-variant-numeric: tabular-nums; }
[data-testid="stHeader"] { background: transparent; height: 2.2rem; }
[data-testid="stMainBlockContainer"] { max-width: 1640px; padding-left: 1.7rem; padding-right: 1.7rem; }
[data-testid="stSidebar"] { width: 184px !important; min-width: 184px; }
[data-testid="stSidebarHeader"] { height: 1.4rem; min-height: 0; margin-bottom: .4rem; padding: .6rem .8rem 0; }
[data-testid="stSidebarNav"]::before { content: "RouteSparse"; display: block; font-weight: 650;
  font-size: 1.08rem; padding: 0 .1rem .7rem; }
[data-testid="stSidebarNavItems"] > li::before { display: block; color: var(--rs-mute); font-size: .8rem;
  text-transform: uppercase; letter-spacing: .07em; padding: .6rem .5rem .25rem; }
[data-testid="stSidebarNavLink"][aria-current="page"] { background: var(--rs-pick) !important; }
[data-testid="stSidebarNavLink"][aria-current="page"] span { color: var(--rs-accent); font-weight: 600; }
[class*="st-key-card-"] { background: var(--rs-panel); padding: 14px 16px; }
.rs-title { font-size: 1.5rem; font-weight: 650; line-height: 1.2; letter-spacing: -.005em; }
.rs-sub, .rs-note { color: var(--rs-mute); font-size: .93rem; line-height: 1.45; overflow-wrap: anywhere; }
.rs-note { font-size: .86rem; }
.rs-h { font-weight: 650; font-size: 1rem; }
.stApp .st-key-run-header { flex-wrap: nowrap; } .st-key-run-header > :first-child { min-width: 0; }
.rs-kpi { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 10px; }
@media (max-width: 1560px) { .rs-kpi:has(> :nth-child(8)) { grid-template-columns: repeat(4, 1fr); } }
.rs-kpi div { background: var(--rs-panel); border: 1px solid var(--rs-line); border-radius: 8px;
  padding: 8px 12px 9px; }
.rs-kpi span { display: block; color: var(--rs-mute); font-size: .84rem; }
.rs-kpi b { display: block; font-size: 1.3rem; font-weight: 650; line-height: 1.35; }
.rs-kpi b.none { color: var(--rs-mute); font-size: 1rem; font-weight: 500; line-height: 1.755; }
.rs-kpi small { display: block; color: var(--rs-mute); font-size: .84rem; line-height: 1.3; }
/* Its cells could be formulas; our own button CSV makes them texts. */
[data-testid="stElementToolbarButton"]:has([aria-label^="Download as CSV"]) { display: none; }
.stApp button kbd { color: var(--rs-mute); opacity: 1; }
/* A shadow at the side where more columns are. */
.rs-table { overflow-x: auto; background:
  linear-gradient(90deg, var(--rs-panel) 40%, transparent) left / 24px 100% no-repeat local,
  linear-gradient(270deg, var(--rs-panel) 40%, transparent) right / 24px 100% no-repeat local,
  linear-gradient(90deg, rgb(0 0 0 / .16), transparent) left / 9px 100% no-repeat scroll,
  linear-gradient(270deg, rgb(0 0 0 / .16), transparent) right / 9px 100% no-repeat scroll; }
.rs-table table { border-collapse: collapse; width: 100%; font-size: .89rem; }
.rs-table th { position: sticky; top: 0; background: var(--rs-panel); color: var(--rs-mute);
  font-weight: 500; text-align: right; padding: 4px 5px; border-bottom: 1px solid var(--rs-line);
  white-space: nowrap; }
.rs-table td { text-align: right; padding: 3px 5px; border-bottom: 1px solid var(--rs-line);
  white-space: nowrap; }
.rs-table .l { text-align: left; }
.rs-table td.w { width: 99%; max-width: 90px; overflow: hidden; text-overflow: ellipsis; }
.st-key-card-settings td.l:not(.w), .st-key-card-settings th, .st-key-card-sides td.l,
.st-key-card-kinds td.l { white-space: normal; }
.st-key-card-settings td.l:not(.w) { overflow-wrap: anywhere; }
.rs-table mark { background: var(--rs-pick); color: var(--rs-ink); text-decoration: underline; }
.rs-table .no { color: var(--rs-mute); }
.rs-table tr.pick td { background: var(--rs-pick); font-weight: 600; color: var(--rs-ink); }
.rs-table tr:last-child td { border-bottom: 0; }
.rs-pair { display: grid; grid-template-columns: auto minmax(90px, auto); font-size: .92rem; }
.rs-pair span, .rs-pair b { padding: 3px 0; border-bottom: 1px solid var(--rs-line); font-weight: 500; }
.rs-pair span { color: var(--rs-mute); } .rs-pair b { text-align: right; }
.rs-pair > :nth-last-child(-n+2) { border-bottom: 0; }
.rs-pair b.none { color: var(--rs-mute); font-weight: 400; }
.rs-dropped { font-size: 1.15rem; font-weight: 650; }
.rs-words { font: .82rem/1.5 "Source Code Pro", ui-monospace, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; unicode-bidi: isolate; border-left: 2px solid var(--rs-line); padding-left: 8px; }
.rs-block { font: .82rem/1.5 "Source Code Pro", ui-monospace, monospace; white-space: pre-wrap; max-height: 170px;
  overflow: auto; overflow-wrap: anywhere; unicode-bidi: isolate; margin: 0; padding: 10px 12px; border-radius: 6px;
  color: var(--rs-ink); background: light-dark(#f6f7f8, #15181b); }
.rs-words + .rs-note { margin-top: .3rem; }
.rs-words mark { background: none; color: var(--rs-ink); font-weight: 700; text-decoration: underline; }
.stApp [class*="st-key-goto-"] { gap: .1rem; }
.stApp [class*="st-key-goto-"] button { min-height: 1.5rem; padding: 0; justify-content: flex-start; text-align: left; }
.stApp [class*="st-key-goto-"] button p { font-size: .89rem; color: var(--rs-accent); font-weight: 500; }
.rs-unknown { background: light-dark(#e6e8ea, #31373d); color: var(--rs-ink); border-radius: 4px; padding: 14px;
  font-size: .93rem; }
.rs-legend { display: flex; flex-wrap: wrap; gap: 4px 14px; color: var(--rs-mute); font-size: .86rem; }
.rs-legend span { display: inline-flex; align-items: center; overflow-wrap: anywhere; }
.rs-legend i { display: inline-flex; width: 16px; height: 16px; border-radius: 3px; margin-right: 5px;
  align-items: center; justify-content: center; font: 600 .72rem/1 sans-serif; }
.rs-bar { display: inline-block; width: 18px; height: 9px; border-radius: 2px; background: var(--rs-accent);
  opacity: .75; }
.st-key-card-runs { padding: 12px 10px; }
.rs-state { border: 1px solid var(--rs-line); background: var(--rs-panel); border-radius: 8px;
  padding: 22px 24px; max-width: 720px; }
.rs-state b { font-size: 1.05rem; display: block; margin-bottom: 6px; }
.rs-state p { margin: 4px 0; color: var(--rs-mute); } .rs-state.bad { border-left: 3px solid var(--rs-warn); }
.rs-state code { color: var(--rs-ink); font-size: .92em; overflow-wrap: anywhere; }
.stApp [data-testid="stDownloadButton"] button[kind="tertiary"],
.stApp [class*="st-key-quiet"] button { font-size: .86rem; min-height: 1.5rem; padding: 0 .2rem; }
.stApp .st-key-actions { min-height: 2rem; }
.stApp .st-key-actions button { min-height: 1.8rem; padding: .1rem .7rem; font-size: .92rem; }
.stApp [class*="st-key-move"] button { min-height: 1.9rem; padding: .1rem .35rem; font-size: .88rem; }
.stApp [data-testid="stButtonGroup"] button { min-height: 1.85rem; padding: .1rem .6rem; font-size: .89rem; }
.stApp [data-tag], .stApp [data-tag] * { background: var(--rs-pick); color: var(--rs-ink); }
.stApp button[kind="primary"]:not(:disabled) p { color: light-dark(#ffffff, #10151b); }
/* Inline, so that it stays on the line of the word before it. */
.rs-q { padding: 0 3.2px; line-height: 1;
  border-radius: 50%; border: 1px solid var(--rs-line); color: var(--rs-mute); font-size: 9.5px; cursor: help;
  margin-left: 4px; position: relative; vertical-align: 1px; font-weight: 500; }
.stApp [class*="st-key-foot-"] > :first-child { flex: 1 1 280px; width: auto; min-width: 0; }
.stApp [class*="st-key-foot-"] { column-gap: .8rem; row-gap: 0; justify-content: flex-end; }
.rs-table th .rs-q, a.rs-q { color: var(--rs-mute); text-decoration: none; }
.rs-equation { display: grid; grid-template-columns: 2.2rem minmax(270px, 34%) 1fr; gap: 12px; padding: 7px 0;
  border-bottom: 1px solid var(--rs-line); align-items: baseline; }
.rs-equation:last-child { border-bottom: 0; }
.rs-equation span { color: var(--rs-mute); } .rs-equation b { font-weight: 600; font-size: 1.02rem; }
.rs-equation small { color: var(--rs-mute); font-size: .9rem; }
.rs-equation code { font-size: .92em; color: var(--rs-mute); }
.rs-table td.say { white-space: normal; color: var(--rs-mute); line-height: 1.45; }
.st-key-card-ablations td.say { min-width: 200px; }
.st-key-card-answer td.l { white-space: normal; overflow-wrap: anywhere; min-width: 34px; }
.st-key-card-other-runs td.l:not(.wrap) { max-width: 180px; overflow: hidden; text-overflow: ellipsis; }
.rs-table td.wrap { white-space: normal; min-width: 78px; } .rs-table td.l.wrap { min-width: 120px; }
/* The user's own names: they break where they must, so that the last column stays in the card. */
.st-key-card-tuned td.l.wrap { min-width: 92px; overflow-wrap: anywhere; }
.rs-q:hover, .rs-q:focus { color: var(--rs-accent); border-color: var(--rs-accent); outline: none; }
.rs-q.tip:hover::after, .rs-q.tip:focus::after { content: attr(data-tip); position: absolute; left: -10px;
  top: 18px; width: 250px; z-index: 50; background: var(--rs-panel); color: var(--rs-ink); text-align: left;
  border: 1px solid var(--rs-line); border-radius: 7px; padding: 8px 10px; font-size: 12.5px; line-height: 1.4;
  font-weight: 400; white-space: normal; box-shadow: 0 4px 16px rgb(0 0 0 / .14); }
[class*="candidates"] .rs-table td.w { width: auto; max-width: none; min-width: 150px; white-space: normal; }
/* Where ten columns have no room, a candidate and its outcome stand above its numbers: nothing is scrolled to. */
[class*="candidates"] .rs-table { container-type: inline-size; }
@container (max-width: 640px) {
  [class*="candidates"] .rs-table :is(table, tbody) { display: block; }
  [class*="candidates"] .rs-table tr { display: grid; grid-template-columns: repeat(8, minmax(0, 1fr)); }
  [class*="candidates"] .rs-table tr > .l { grid-column: span 4; border-bottom: 0; padding-bottom: 0;
    white-space: normal; overflow-wrap: anywhere; } }
.st-key-card-candidates th { white-space: normal; vertical-align: bottom; }
.st-key-card-candidates th .rs-q { display: none; }
.st-key-card-candidates th[title] { text-decoration: underline dotted; text-underline-offset: 3px; cursor: help; }
[data-testid="stPageLink-NavLink"]:not(:hover) { background: transparent !important; }
[data-testid="stPageLink-NavLink"] p { color: var(--rs-accent); font-weight: 500; }
.rs-came { display: grid; grid-template-columns: 190px 60px 72px; gap: 12px; align-items: center; }
.rs-came > span:not(:first-child) { text-align: right; font-variant-numeric: tabular-nums; }
.rs-came-heads { display: flex; justify-content: flex-end; padding-right: 56px;
  color: var(--rs-mute); font-size: .86rem; }
@media (max-width: 1000px) {
  .rs-came-heads { display: none; }
  .rs-came { grid-template-columns: auto; gap: 0; }
  .rs-came > span:not(:first-child) { text-align: left; }
  .rs-came > span:not(:first-child)::before { content: attr(data-name) " "; color: var(--rs-mute); } }
.rs-steps { display: flex; flex-wrap: wrap; gap: 6px; }
.rs-steps span { border: 1px solid var(--rs-line); border-radius: 7px; padding: 5px 12px; color: var(--rs-mute);
  font-size: .9rem; }
.rs-steps span.done { color: var(--rs-ink); } .rs-steps span.done::before { content: "✓ "; }
.rs-steps span.now { color: var(--rs-accent); border-color: var(--rs-accent); font-weight: 600; }
.rs-steps span.bad { color: var(--rs-warn); border-color: var(--rs-warn); font-weight: 600; }
.rs-progress { height: 6px; border-radius: 3px; background: var(--rs-line); margin: 12px 0 2px; overflow: hidden; }
.rs-progress i { display: block; height: 100%; background: var(--rs-accent); }
.rs-claims { display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: 10px; }
.rs-claims > div { border: 1px solid var(--rs-line); border-radius: 8px; padding: 10px 12px; }
.rs-claims > div.truth { border-style: dashed; }
.rs-claims span { color: var(--rs-mute); font-size: .86rem; } .rs-claims small { color: var(--rs-mute);
  font-size: .82rem; line-height: 1.35; display: block; }
.rs-claims b { display: block; font-size: 1.25rem; font-weight: 650; }
.rs-claims b.none { font-size: 1rem; color: var(--rs-mute); font-weight: 500; line-height: 1.6; }
.rs-claims + .rs-note { margin-top: 8px; }
.rs-claims.rs-three { grid-template-columns: repeat(3, minmax(0, 1fr)); }
.rs-three small { margin-top: 6px; font-size: .86rem; } .rs-three strong { color: var(--rs-ink); font-weight: 600; }
.rs-narrow { display: none; } @media (max-width: 1200px) { .rs-narrow { display: block; } }
.rs-claims em { font-style: normal; font-weight: 600; font-size: .88rem; } .rs-claims em.bad, .rs-warn
  { color: var(--rs-warn); }
/* Of a certificate: one below the other where half the window is too narrow for all columns. */
@media (max-width: 1400px) {
  [data-testid="stHorizontalBlock"]:has(> * .st-key-card-worst-certified, > * .st-key-card-certified-layers)
    > [data-testid="stColumn"] { min-width: 100%; } }
:is(.st-key-card-worst-certified, .st-key-card-certified-layers, .st-key-card-named-rows) .rs-table :is(th, td)
  { white-space: normal; vertical-align: bottom; }
.st-key-card-named-rows .rs-table .l { overflow-wrap: anywhere; min-width: 64px; }
.st-key-card-named-rows .rs-table .l:nth-child(2) { min-width: 96px; }
@media (max-width: 1100px) { .rs-table th { white-space: normal; vertical-align: bottom; }
  [class*="candidates"] .rs-table td.w { min-width: 118px; }
  .st-key-card-sides .twice { display: none; } .st-key-card-sides td.l:first-child { min-width: 105px; }
  .st-key-card-sides td.against { min-width: 84px; }
  .rs-kpi:has(> :nth-child(6):last-child) { grid-template-columns: repeat(3, 1fr); }
  .rs-kpi:has(> :nth-child(7)) { grid-template-columns: repeat(4, 1fr); }
  :is(.st-key-card-all-candidates, .st-key-card-other-runs, .st-key-card-sides, .st-key-card-answer)
    .rs-table :is(th, td) { padding-inline: 2.5px; }
  .st-key-card-other-runs th .rs-q { display: none; }
  .st-key-card-worst td.l:not(.w) { white-space: normal; min-width: 100px; } .st-key-card-worst td.w { width: auto; }
  .rs-claims { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
.rs-table a { color: var(--rs-accent); text-decoration: none; } .rs-table a:hover { text-decoration: underline; }
.rs-table .cell { display: inline-flex; width: 18px; height: 18px; border-radius: 3px; align-items: center;
  justify-content: center; font: 600 .75rem/1 sans-serif; }
.rs-verdict { display: flex; gap: 12px; align-items: flex-start; padding: 9px 14px; border-radius: 8px;
  border: 1px solid var(--rs-line); border-left: 5px solid var(--rs-level); background: var(--rs-panel); }
.rs-verdict.red { --rs-level: var(--rs-red); } .rs-verdict.amber { --rs-level: var(--rs-amber); }
.rs-verdict.green { --rs-level: var(--rs-green); }
.rs-verdict > i { flex: none; width: 22px; height: 22px; border-radius: 50%; background: var(--rs-level);
  color: var(--rs-panel); font: 700 14px/22px sans-serif; text-align: center; }
.rs-verdict b { color: var(--rs-level); } .rs-verdict small { display: flex; flex-wrap: wrap; gap: 0 16px;
  color: var(--rs-mute); font-size: .88rem; line-height: 1.5; }
.rs-mark { font-style: normal; font-weight: 700; } .rs-mark.red { color: var(--rs-red); }
.rs-mark.amber { color: var(--rs-amber); } .rs-mark.green { color: var(--rs-green); }
.rs-void { font-style: normal; font-weight: 600; color: var(--rs-red) !important; }
.rs-tour { border-left: 3px solid var(--rs-accent); padding: 3px 0 3px 11px; line-height: 1.45; }
.rs-icons { display: grid; gap: 12px; } .rs-icons > div { display: flex; gap: 14px; align-items: center; }
.rs-icons .rs-icon { flex: none; } .rs-icons small { display: block; color: var(--rs-mute); font-size: .9rem; }
.rs-icons i { display: inline-flex; width: 18px; height: 18px; border-radius: 3px; margin-right: 7px;
  align-items: center; justify-content: center; font: 600 .75rem/1 sans-serif; }
.rs-sample { display: flex; flex-wrap: wrap; gap: 10px 22px; align-items: flex-start; }
.rs-cells { display: grid; gap: 3px; } .rs-cells span { width: 28px; height: 26px; border-radius: 4px;
  display: inline-flex; align-items: center; justify-content: center; font-size: .84rem; font-weight: 650; }
.rs-cells span.no { color: var(--rs-mute); font-weight: 400; font-size: .8rem; }
.rs-cells span.ring { outline: 2.4px solid var(--rs-ink); outline-offset: 1px; }
.rs-sample ol { flex: 1 1 260px; margin: 0; padding-left: 1.3em; }
.rs-sample li { margin: 0 0 9px; line-height: 1.45; } .rs-sample li::marker { font-weight: 650; }
.rs-command { overflow-wrap: anywhere; }
.rs-plain { font-size: 1.06rem; line-height: 1.55; max-width: 62em; }
.rs-concludes p { font-size: 1.06rem; line-height: 1.5; max-width: 70em; margin: 0 0 6px; }
.rs-error { border-left: 3px solid var(--rs-warn); padding: 2px 0 2px 10px; font-size: .93rem; }
/* Of components that draw: what the pointer is over, the drawing, and what only screen readers get. */
.rs-tip { position: absolute; z-index: 40; pointer-events: none; white-space: pre; padding: 7px 10px;
  background: var(--rs-panel); color: var(--rs-ink); border: 1px solid var(--rs-line); border-radius: 7px;
  font-size: 12.5px; line-height: 1.45; box-shadow: 0 4px 16px rgb(0 0 0 / .14); }
.rs-tip::first-line { font-weight: 650; }
.rs-drawn { position: relative; border-radius: 4px; }
.rs-drawn:focus-visible { outline: 2px solid var(--rs-accent); outline-offset: 2px; }
.rs-drawn svg { display: block; user-select: none; font-variant-numeric: tabular-nums; }
.rs-said { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
</style>
"""


def apply_style() -> None:
    """Put the page style in; once per rerun, before anything else is drawn."""
    st.html(_STYLE)
