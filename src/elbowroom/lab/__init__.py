"""The lab: populations of small language models, trained in one program and resumed exactly."""
