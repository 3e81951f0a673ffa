"""What the router decided on 40 prompts, to the last bit, so that two versions of this project can be compared.

``problems.py`` makes the prompts and their settings, ``recording.py`` routes them and takes down every decision, and
``comparison.py`` says what differs between two recordings.
"""
