"""The verdicts of EVIDENCE.md computed a second time: pandas and scipy alone, nothing of RouteSparse.

    cd data/results/real; python ../verdicts.py evidence_1.5b_h200.jsonl.gz evidence_domain_1.5b_h200.jsonl.gz

scipy's bootstrap (BCa) over documents; Holm's correction over the family of five, of H3 its mean. The second file holds
H2's test by domain.
"""

import sys

import numpy as np
import pandas as pd
from scipy.stats import bootstrap

FIXED, OURS = ("minference@prose/16384", 1.0), ("routesparse_fitted", 0.25)
MORE, FALLBACK = ("routesparse_fitted", 0.23), ("routesparse_fitted@tau_head:0.85", 0.25)
DECIDING = 0.30  # what ours costs, in area
AT = ["task", "length", "index", "seed"]


def pairs(rows, *methods):
    """A line a prompt: its document, and what either method lost (a, b) and read (area_a, area_b)."""
    own = [rows[(rows.method == name) & (rows.setting == setting)].set_index(AT) for name, setting in methods]
    made = pd.DataFrame({"document": own[0].document, "a": own[0].lost, "b": own[1].lost})
    return made.assign(area_a=own[0].area, area_b=own[1].area).dropna().reset_index()


def tested(statistic, *samples):
    """Estimate, 95 % interval, two-sided p; each sample is a list of documents, [prompts, 2] of losses."""

    def of(*places):
        return statistic(*(np.vstack([own[i] for i in at]) for own, at in zip(samples, places, strict=True)))

    places = [np.arange(len(own)) for own in samples]
    found = bootstrap(places, of, vectorized=False, n_resamples=9_999, rng=0)
    draws, (low, high) = found.bootstrap_distribution, found.confidence_interval
    return of(*places), low, high, max(2 * min((draws <= 0).mean(), (draws >= 0).mean()), 2e-4)


def lost(file):
    """The file's rows with what each lost against dense, and of those of texts which are."""
    rows = pd.read_json(file, lines=True)
    rows = rows[rows.method.notna()].assign(document=lambda r: r.documents.str[0])
    text = rows.task.str.startswith("text:")
    dense = rows[rows.method == "dense"].set_index(AT).nats.rename("exact")
    nats = (rows.nats - rows.join(dense, on=AT).exact) * rows.positions
    return rows.assign(lost=rows.kl.where(text, nats)), text


def verdicts(file, domain_file):
    """Tests by name: estimate, low, high, p, p after Holm, verdict."""
    (rows, text), (again, _) = lost(file), lost(domain_file)
    answers, texts, third = (
        pairs(rows[kind], *of)
        for kind, of in ((~text, (FIXED, OURS)), (text, (FIXED, OURS)), (text, (MORE, FALLBACK)))
    )
    answers = answers[answers.area_b <= answers.area_a - DECIDING]
    assert third.area_a.mean() <= third.area_b.mean(), "more for all reads more than the fallback: H3 is void"

    def documents(own):
        return [group[["a", "b"]].to_numpy() for _, group in own.groupby("document")]

    def worst(losses):
        return np.sort(losses)[-round(len(losses) / 10) :].mean()

    again, by = pairs(again, FIXED, OURS), documents(third)
    new, other, long = again.task != "text:prose", texts.task != "text:prose", texts.length > 16_384
    plain = texts[~other & ~long]
    shifts = {
        "domain": (again[new], again[~new]),
        "length": (texts[~other & long], plain),
        "both": (texts[other & long], plain),
    }
    found = {"H1": tested(lambda x: (x[:, 0] - x[:, 1]).mean(), documents(answers))}
    for name, cells in shifts.items():
        found[f"H2 {name}"] = tested(
            lambda x, y: y[:, 1].sum() / y[:, 0].sum() - x[:, 1].sum() / x[:, 0].sum(), *map(documents, cells)
        )
    found["H3"] = tested(lambda x: (x[:, 0] - x[:, 1]).mean(), by)
    family = pd.DataFrame(found, index=["estimate", "low", "high", "p"]).T.sort_values("p")
    family["holm"] = (family.p * np.arange(len(family), 0, -1)).cummax().clip(upper=1)
    family.loc["H3 in the worst tenth"] = [*tested(lambda x: worst(x[:, 0]) - worst(x[:, 1]), by), np.nan]
    sure, above = family.holm.fillna(family.p) < 0.05, family.low > 0
    names = np.select([sure & above, sure], ["supported", "rejected"], "excluded above its upper end")
    return family.assign(verdict=names).sort_index()


if __name__ == "__main__":
    print(verdicts(*sys.argv[1:]).to_string(float_format="{:.4f}".format))
