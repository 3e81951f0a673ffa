"""What pages share to look and read alike: colours, numbers, terms, states, exports, shared figures."""
