"""The page Calibration and profiles: ``page.render`` draws it; the other modules serve it alone."""
