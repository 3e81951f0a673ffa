"""How the bundled model was made: its corpus, the tasks that it was trained on, the training, and its card."""
