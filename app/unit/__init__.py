"""What shows one routing unit (layer, head, segment): cards, tables, charts, probe, masks, zoom."""
