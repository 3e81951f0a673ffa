"""The pages of the dashboard, a folder each; main.py lists them."""
