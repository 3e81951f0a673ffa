"""The terms of the pages, behind question marks: what each means, and where the paper defines it or that it is ours."""

from __future__ import annotations

from html import escape

from routesparse.engine.export.wording import CERTIFICATE_SCOPE, HEAD_FLOOR

__all__ = ["CERTIFICATE_SCOPE", "HEAD_FLOOR", "TERMS", "heading", "mark", "name"]

TERMS: dict[str, str] = {
    "unit": "One head of one layer within one segment of the prompt: the smallest part that gets its own decision "
    "(section 3.1).",
    "segment": "Consecutive query rows that share one decision per head, by default 16,384 tokens and on a GPU "
    "131,072; a multiple of the query block of 128 rows (abstract, section 3.1).",
    "body": "The rows of a segment without the tail: the rows that a sparse plan shortens and that certificates "
    "speak about (ours).",
    "tail": "The last rows of the prompt, 128 by default, which always read all keys because they often hold the "
    "question (ours).",
    "candidate": "A pattern family with one of its budgets: what the router chooses from, besides dense attention "
    "(section 3.1).",
    "budget": "How much a candidate reads within its pattern family, such as a number of key blocks; the time limit "
    "Tℓ is another thing (section 3.1).",
    "level": "The rank of a budget within its pattern family: a larger level reads all that a smaller one reads, and "
    "more (ours).",
    "plan": "The key blocks and single key columns that every block of query rows reads when the layer runs (section "
    "3.4, step 6).",
    "retained_mass": "m: the share of a row's softmax attention that falls on the keys it still reads; m̂ is its "
    "mean over the routing rows, a random sample of the body (equation 4).",
    "tau": "τ: the retained mass that a certificate must reach before a sparse plan is trusted; the policy priced has "
    "one for the mean of a layer, τ layer, and a lower one for each head, τ head (section 3.4, step 5).",
    "tau_layer": "τ layer: the mean retained mass over a layer's heads that the layer's certificate must reach under "
    "the policy priced; until it does, the whole layer climbs to larger budgets (ours).",
    "tau_head": "τ head: the retained mass that every single head's certificate must reach under the policy "
    "priced. A safety floor, so that no head is given up; reaching it says nothing about quality (ours).",
    "price": "What a KV block must be worth to be read: the share of a query block's attention that it must hold, "
    "scaled to the prompt's length. One price for all heads and layers of a run, so a head pays for what it uses; a "
    "higher price reads less (ours).",
    "quality": "A quality target in place of a price: the one that reads least among the prices at which a loss "
    "against dense attention stayed below a limit on texts of a domain, in the mean over windows, each counted up to a "
    "cap, by an upper confidence bound (routesparse tune). Learn-then-Test with fixed-sequence testing; of "
    "several domains the mean, or each; where a domain has few documents (of code: projects) the claim is about "
    "those. Of the bundled ones those that end in kl bound the KL to dense by 0.01 nats a token, agreement the "
    "changed next tokens by 3 %, nats the rise of the text's loss by 0.01 nats a token; answer, over questions, "
    "that of their gold answers' loss by 0.05 (ours).",
    "floor_family": "Floor, a pattern family: for every query block, all KV blocks that hold at least a given share of "
    "the block's attention. Under the policy priced the price sets that share; its budgets are multiples of it (ours).",
    "layer_certificate": "Lower bound on the mean retained mass over all heads and body rows of one layer, from the "
    "random rows of all heads together; heads that run dense count as 1. It is a mean: single heads and rows may lose "
    "far more, and a rare row everything. Policy priced only (ours).",
    "raised": "By how many levels all heads of a layer were moved to larger budgets than the router chose, because the "
    "layer's certificate was below τ layer; past the last allowed one the layer is dense (ours).",
    "gate_statistic": "g = min(m̂, recent mean): the probe's mean retained mass over the routing rows or over the "
    "last 64 rows, whichever is smaller (equation 4 has m̂ alone).",
    "gate_threshold": "λ: the gate statistic g that a sparse candidate must reach to be considered. One for all heads, "
    "above τ, so that few certificate tests are wasted. Under the policy priced each head has its own: the floor "
    "at the price is always considered, and any other candidate must lose at most half of the mass that this floor "
    "loses (section 3.4, ours).",
    "disagreement": "u: how far the recent, body and boundary rows differ in retained mass, as the standard "
    "deviation of their means; high where some rows need other keys (equation 4).",
    "risk": "R = 1 − g + α u + β e: what the router weighs against predicted time (equation 4).",
    "certificate": "In-prompt lower bound on the mean retained mass of one head's body rows, computed from random "
    "rows of this prompt without any calibration (section 3.3; equation 5 turns it into a bound on the error).",
    "certificate_floor": "What a head's certificate must leave open even if every sampled row retained everything: "
    "with 128 rows at 95 %, ln(20)/128 = .023, so none exceeds .977; where up to three tests share the error "
    "(policies other than priced), ln(60)/128 = .032 (ours).",
    "conformal": "g − δ_q: a lower bound on the true gate statistic, learnt from calibration prompts and valid for "
    "prompts like those (section 3.3).",
    "row_statement": "The retained mass that a random body row of this prompt reaches with the stated confidence; it "
    "is not a mean, and some rows retain less (section 3.3).",
    "density": "Kept, of one head: the query-key pairs that the body of its segment reads, as a share of those that "
    "dense attention reads, the causal area; the dense tail is not in it (section 3.2).",
    "kept": "Kept, of a run: the share of the causal area that the plans read, tail and dense heads included, mean "
    "over all units. Every page means this by the kept share of a run (section 3.2).",
    "entropy": "How spread out the probe rows' attention is: the mean entropy over key blocks, in nats (equation 3).",
    "local_band": "Share of the probe rows' attention that falls close to the diagonal, on the most recent keys "
    "(equation 3).",
    "probe": "A few query rows, measured against all keys before anything is decided; all candidates of a head are "
    "scored with them (equation 3).",
    "policy": "priced: the floor at the price, or a cheaper candidate that loses at most half as much; the layer's "
    "certificate guards the mean over its heads. certified: each head's cheapest candidate that reaches λ. "
    "budgeted: the least total risk within Tℓ (equation 6). strict: as budgeted, and fallback may not exceed Tℓ "
    "either.",
    "time_limit": "Tℓ: the predicted time that one layer's attention may take, as a fraction of dense (0.25) or in "
    "microseconds (800us) (equation 6).",
    "calibration": "λ and δ_q, measured on prompts of one domain for one model and then frozen; without one, the "
    "in-prompt certificate decides alone. For the policy priced there is no λ, only δ_q (section 3.5).",
    "audit": "A comparison with dense attention after the decisions. rows: on a random sample of every head's rows; "
    "full: on all rows, and layer by layer on a dense forward pass (section 4.2).",
    "fallback": "What happens when a certificate fails: the head takes the next, more expensive candidate "
    "(expanded; under the policy priced the next level of its own family), and after the last allowed test it reads "
    "all keys (dense). Where a layer's certificate fails, all its sparse heads do (section 3.4, step 5).",
    "fallback_limit": "The paper counts a run as a failure when more of its units than this became dense by "
    "fallback: quality is kept, the speedup is lost (section 4.3).",
    "expanded": "The certificate of the router's choice, or of its layer, failed and a more expensive candidate "
    "passed: the unit is still sparse (section 3.4, step 5).",
    "dense_router": "The router itself chose dense attention, because no sparse candidate reached λ or was predicted "
    "to be faster; nothing was tested (section 3.4, step 4).",
    "paid": "Predicted kernel time that fallback added to the plan (section 3.4, step 5).",
    "over_budget": "The plan's predicted time exceeds Tℓ, because fallback may exceed it or because no plan was fast "
    "enough (equation 6).",
    "uncertified_layers": "Layers with sparse heads whose certificate is below τ layer, or that have none: that their "
    "mean mass reaches τ layer is not certified. With fallback on they would have been moved to larger budgets (ours).",
    "uncertified": "Sparse units whose in-prompt certificate is below τ (under the policy priced, below τ head): "
    "policy strict had no time in Tℓ to expand them, or fallback was off. That their mass reaches τ is not certified "
    "(section 3.4, step 5).",
    "unmet": "Policy strict: a certificate failed, Tℓ left no time for a more expensive candidate, and the unit ran "
    "uncertified (section 3.4).",
    "break_even": "Prompts of fewer tokens run dense and without a probe, because routing is predicted not to pay; "
    "left empty, the latency profile predicts the number (section 3.5).",
    "dropped": "A head has dropped a passage when fewer than the chosen share of later rows read it: of all pairs of a "
    "sparse row that comes after it and a key of its blocks. The dense tail, the prompt's last rows, reads everything "
    "in every head and is not counted (ours).",
    "error": "‖O − Õ‖ / ‖O‖: distance of the sparse attention output from the dense one, over the audited rows "
    "(E_rel, section 4.2).",
    "output_claim": "Output-error claim: with confidence q, the largest ‖o − õ‖ / ‖o‖ of N rows drawn at random is not "
    "exceeded by at least a share (1 − q)^(1/N) of all rows; the mean is bounded likewise, each row counted up to 1. "
    "certify makes it of a function’s own output, kernel and number format included; Audit makes it of a run, of the "
    "rows of the chosen plan that the audit rebuilt (ours).",
    "hit_rate": "Hit rate of the largest key: the share of rows whose single most attended key the plan reads. A plan "
    "may keep much mass and miss the one key that a question asks for, or the other way round (ours).",
    "alarm": "Alarm of a certificate: a drawn row holds NaN or Inf, or differs from exact attention by more than "
    "rounding in its number format; with a tolerance, only if too many rows exceed it. A fault in a share f of the "
    "rows escapes all N drawn rows with probability (1 − f)^N (ours).",
    "named_rows": "Rows of a certificate that its maker named, such as the last 64 tokens or a phrase: each is "
    "scored exactly in every head. Nobody drew them, so their figures are a measurement of these rows and bound no "
    "other; no claim counts them. They can make a verdict worse, never better (ours).",
    "bounds": "Audited rows whose error exceeds the paper's bound or the tight one by more than float32 rounding; "
    "there must be none (equation 5).",
    "tight": "(1 − m)(‖õ‖ + V_max): the lost mass times the largest possible distance between what was read and what "
    "was left out (section 3.3, below equation 5).",
    "paper_bound": "2 (1 − m) V_max: the most that a row's output can be off when it retains mass m; the figure says "
    "how many times the worst row's error it is (equation 5).",
    "coverage": "How often a claim proved true: the share of a prompt's selected sparse units whose audited value is "
    "at least the claimed one; it judges the bound, not the answer (section 4.2).",
    "answer": "The next token after the prompt, by this run and by a dense prefill: whether both prefer the same one, "
    "and KL(dense ‖ run) in nats, by how much the odds of all tokens moved. It is one position: later ones may differ "
    "(ours).",
    "continuation": "Up to 24 tokens decoded greedily from the keys and values that this run's prefill left behind, "
    "beside those from a dense prefill's; both decode with dense attention. A near tie can part two texts that mean "
    "the same, so it is no measure of quality (ours).",
    "verdict": "One colour and sentence for a run, by its worst finding: uncertified heads or layers, drift, fallbacks "
    "beyond the limit, audited errors and bounds, and whether the next token is as by dense. Green needs that last one "
    "(ours).",
    "residual": "g − g*: what the probe said minus the audited truth of the same statistic; δ_q is a high quantile "
    "of it over calibration prompts (section 3.3).",
    "paired": "On the same prompt each head is compared with itself, so that the prompt cancels; on different "
    "prompts only means can be compared (section 4.2).",
    "choice_entropy": "Entropy in bits of a head's pattern over the domains of the stored runs, each domain with "
    "equal weight; 0: the head takes the same pattern everywhere (section 2.2).",
    "predictor": "e: the output error that boosted trees predict from g, u and entropy, fitted on fold A; it enters "
    "the risk with weight β and no certificate (equation 4).",
    "cost_model": "How many sparse tiles a dense tile costs, which decides what is cheapest; on a machine with "
    "another ratio other candidates are selected and δ does not apply (section 3.5).",
    "sweep": "One prompt under several values of one setting, submitted together: a job and a run for each value, "
    "and a page that shows what each reads, how far off it is and how long it takes (ours).",
    "front": "The settings of a sweep that no other one beats: none is at most as dear and at most as far off, and "
    "better in one of the two (ours).",
    "evaluation_front": "The methods that no other one beats: none reads at most as much and loses at most as much, "
    "and better in one of the two. Oracles, which nobody could run, don't count. By estimates alone; where intervals "
    "overlap the order is not sure (ours).",
    "drift": "How unlike the calibration's prompts this one is, as a conformal p-value of its entropy, local band "
    "and agreement; an alarm voids the conformal claim and no other (section 3.5).",
    "folds": "Fold A of the calibration documents fits λ, α and e, which are then frozen; fold B measures δ. A "
    "document in both would make δ too small (section 3.5).",
    "flops": "Counting multiply-adds misses the cost of memory and launches, so the router plans with measured "
    "kernel times; the paper's ablation “predicted FLOPs” does not (sections 3.5 and 4.3).",
    "speedup": "How many times as fast as a dense prefill of the same prompt this run's prefill was, probe and routing "
    "included. Each was measured once, so that a few percent may be chance (ours).",
    "planned": "Predicted: by the latency profile, for the layer's plan. Measured: what the clock said "
    "(section 3.5).",
    "kernel": "Kernel time that the latency profile predicts for a candidate on the run's device (section 3.5).",
}

_NAMES = {
    "retained_mass": "m, retained mass",
    "tau": "τ, required mass",
    "gate_statistic": "g, gate statistic",
    "floor_family": "floor, pattern family",
    "tau_layer": "τ layer, required of a layer's mean",
    "tau_head": "τ head, floor of each head",
    "gate_threshold": "λ, gate threshold",
    "layer_certificate": "certificate of a layer",
    "raised": "raised layer",
    "uncertified_layers": "uncertified layers",
    "disagreement": "u, disagreement",
    "risk": "R, risk",
    "certificate": "certificate, in-prompt",
    "certificate_floor": "certificate, floor of",
    "conformal": "certificate, conformal",
    "row_statement": "certificate, row statement",
    "time_limit": "Tℓ, time limit",
    "density": "kept share of a head, density",
    "kept": "kept share of a run",
    "answer": "answer check",
    "audit": "audit depth",
    "evaluation_front": "front of methods",
    "dense_router": "dense by the router",
    "fallback_limit": "limit for dense by fallback",
    "break_even": "break-even",
    "error": "output error",
    "output_claim": "output-error claim",
    "hit_rate": "hit rate of the largest key",
    "alarm": "alarm of a certificate",
    "named_rows": "named rows",
    "bounds": "bounds violated",
    "tight": "bound, tight",
    "paper_bound": "bound of the paper",
    "predictor": "e, predicted error",
    "flops": "FLOPs",
    "planned": "predicted and measured time",
    "kernel": "predicted kernel time",
    "paid": "paid for fallback",
}


def name(term: str) -> str:
    """A term as the page Terms lists it."""
    return _NAMES.get(term, term.replace("_", " "))


def mark(term: str) -> str:
    """HTML of the question mark: its sentence on hover and on keyboard focus, its equation behind the link."""
    text = escape(TERMS[term])
    return f'<a class="rs-q tip" href="terms?term={term}" target="_blank" aria-label="{text}" data-tip="{text}">?</a>'


def heading(label: str, term: str) -> str:
    """HTML of a table heading with its sentence as title: a table would cut the box off."""
    link = f'<a class="rs-q" href="terms?term={term}" target="_blank">?</a>'
    return f'<th title="{escape(TERMS[term])}">{escape(label)}{link}</th>'
