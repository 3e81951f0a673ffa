"""The Streamlit dashboard: reads the store, never runs the method."""
