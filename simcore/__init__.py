"""simcore: a discrete-event simulator of accelerator chips, memories and interconnects."""
