"""Certify any attention: what a function or a plan did to the running prompt, from random rows scored exactly."""
