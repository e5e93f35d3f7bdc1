"""elbowroom: language models whose rare tokens are not pushed aside by cross-entropy."""
