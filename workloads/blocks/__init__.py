"""The blocks of a Transformer's layer, each a function that reads like its equations."""
