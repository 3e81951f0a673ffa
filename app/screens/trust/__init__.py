"""The page Trust: what is certified of a run or of any attention, what failed, and what an audit found."""
