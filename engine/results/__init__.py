"""What evaluations found, for people: read from their scores, as tables, a page and a report."""
