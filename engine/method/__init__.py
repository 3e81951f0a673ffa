"""The paper, one step a file, with no branch on the device: candidates, probe, scores, router, certificate, plan."""
