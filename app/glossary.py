"""The terms of the pages: one sentence each and where the paper defines them, behind a question mark."""

from __future__ import annotations

from html import escape

TERMS: dict[str, str] = {
    "tau": "τ: the mass of attention that a certificate must reach before a sparse plan is trusted "
    "(section 3.4, step 5).",
    "gate": "g = min(m̂, mean over the recent rows): the statistic that the gate λ reads (with m̂ of equation 4).",
    "lambda": "λ: the least g of an admissible candidate, a margin above τ so that few certificate tests "
    "are wasted (section 3.4).",
    "disagreement": "u: standard deviation of the means over recent, body and boundary rows; high where some rows "
    "need other keys (equation 4).",
    "risk": "R = 1 − g + α u + β e: what the router weighs against time (equation 4).",
    "mass": "m: share of a row's softmax attention that falls on the kept keys; m̂ is its mean over the routing "
    "rows (equation 4).",
    "certificate": "In-prompt lower bound on the body's mean mass, from this prompt's own random rows; needs no "
    "calibration (section 3.3; the error follows by equation 5).",
    "conformal": "g − δ_q: lower mass from calibration prompts; valid for prompts like those (equation 5).",
    "row": "The mass that a random body row of this prompt reaches with the stated confidence; not a mean "
    "(section 3.3).",
    "density": "Kept share of the causal area of the segment's body; dense attention keeps 100 % (section 3.2).",
    "entropy": "Entropy of the probe rows' attention in nats, their mean: high means spread out (equation 3).",
    "local": "Share of attention inside the local band next to the diagonal (equation 3).",
    "probe": "A few query rows against all keys, shared by all candidates of a head (equation 3).",
    "policy": "certified: the cheapest candidate that passes the gate. budgeted: least risk within T_l (equation 6). "
    "strict: T_l is never exceeded, unmet fallbacks are recorded.",
    "budget": "T_l: time limit of one layer's attention, as a fraction of dense (0.25) or in microseconds (800us) "
    "(equation 6).",
    "calibration": "Frozen λ and δ_q from prompts of a domain, stamped for one model; without one the in-prompt "
    "certificate decides alone (section 3.5).",
    "segment": "A contiguous range of query rows with its own decisions; a multiple of 128 tokens "
    "(abstract, section 3.1).",
    "audit": "rows: compare a random sample of rows with dense attention. full: all rows and the first "
    "token (section 4.2).",
    "fallback": "A head whose certificate fails takes the next budget (expand), at last all keys (dense) "
    "(section 3.4, step 5).",
    "fallback_limit": "A higher rate of units that became dense by fallback is a failure: quality is kept, the "
    "speedup is lost (section 4.3).",
    "expanded": "The certificate of the router's choice failed and a larger budget passed: sparse, but dearer "
    "(section 3.4, step 5).",
    "dense_router": "No sparse candidate reached λ or was cheaper than dense, so nothing was tested (section 3.4, "
    "step 4).",
    "paid": "Predicted kernel time that the steps after failed certificates added (section 3.4, step 5).",
    "over_budget": "The plan's predicted time exceeds T_l, because fallback may overrun it or no plan was cheaper "
    "(equation 6).",
    "uncertified": "Sparse units whose in-prompt certificate is below τ: policy strict had no time in T_l to expand "
    "them, or fallback was off. That their mass reaches τ is not certified (section 3.4, step 5).",
    "unmet": "Policy strict: the certificate asked for more, T_l had no time for it, and the plan ran uncertified "
    "(section 3.4).",
    "break_even": "Below this many tokens dense attention runs untouched, without a probe; empty: from the latency "
    "profile (section 3.5).",
    "error": "‖O − Õ‖ / ‖O‖ over the audited rows (E_rel, section 4.2).",
    "bounds": "Rows whose error exceeds the paper's bound or the tight one, beyond float32 rounding (equation 5).",
    "tight": "(1 − m)(‖õ‖ + V_max): the error is (1 − m) times the distance of the kept mean from the omitted mean "
    "(section 3.3, below equation 5).",
    "paper_bound": "2 (1 − m) V_max, how many times the error of the worst row: a bound may be loose, never wrong "
    "(equation 5).",
    "coverage": "Share of selected sparse units whose audited truth is at least what was claimed, per prompt; heads "
    "of a prompt share rows, so the prompt is the unit (section 4.2).",
    "residual": "g − g*: what the probe's rows said minus the audited truth of the same statistic; δ_q is a high "
    "quantile of it on calibration prompts (section 3.3).",
    "paired": "On the same prompt each head is compared with itself, which cancels the prompt; on different prompts "
    "only the means can be compared (section 4.2).",
    "choice_entropy": "Entropy in bits of a head's pattern over the domains of the stored runs, each domain with "
    "equal weight; 0: the head always takes the same pattern (section 2.2).",
    "predictor": "e: boosted trees that predict the output error from g, u and entropy, fitted on fold A; weighted by "
    "β in the risk, never in a certificate (equation 4).",
    "cost_model": "What decided which candidate is the cheapest when δ was measured; on a machine where a dense tile "
    "costs twice or half as much, another one is selected and δ does not apply (section 3.5).",
    "drift": "Conformal p-value of the prompt's descriptors (entropy, local band, agreement) against the calibration's "
    "prompts; an alarm voids the conformal claim only (section 3.5).",
    "folds": "Fold A fits λ, α and e, which are then frozen; fold B measures δ. A document in both would make δ too "
    "small (section 3.5).",
    "flops": "The router plans with measured time, because FLOPs miss memory and launch costs: the paper's ablation "
    "“predicted FLOPs” (sections 3.5 and 4.3).",
    "planned": "What the latency profile predicted for the layer's plan, and what the clock said (section 3.5).",
    "kernel": "Time of the candidate's kernel as the machine's latency profile predicts it (section 3.5).",
}


_NAMES = {
    "tau": "τ",
    "gate": "g, gate statistic",
    "lambda": "λ, gate",
    "disagreement": "u, disagreement",
    "risk": "R, risk",
    "mass": "m, mass",
    "certificate": "certificate, in-prompt",
    "row": "certificate, row statement",
    "conformal": "certificate, conformal",
    "budget": "Tℓ, time limit",
    "density": "kept share, density",
    "local": "local band",
    "audit": "audit depth",
    "error": "output error",
    "predictor": "e, predicted error",
    "flops": "FLOPs",
}


def name(term: str) -> str:
    """A term as the page Terms lists it."""
    return _NAMES.get(term, term.replace("_", " ").replace("-", " "))


def mark(term: str) -> str:
    """HTML of the question mark: its sentence on hover and on keyboard focus, its equation behind the link."""
    text = escape(TERMS[term])
    return f'<a class="rs-q tip" href="terms?term={term}" target="_blank" aria-label="{text}" data-tip="{text}">?</a>'


def heading(label: str, term: str) -> str:
    """HTML of a table heading with its sentence as title: a table would cut the box off."""
    link = f'<a class="rs-q" href="terms?term={term}" target="_blank">?</a>'
    return f'<th title="{escape(TERMS[term])}">{escape(label)}{link}</th>'
