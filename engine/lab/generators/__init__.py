"""What makes the prompts of generated tasks: RULER's, InfiniteBench's, stories; and the texts that they stand in."""
