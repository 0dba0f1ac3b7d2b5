"""Where runs are trained: in processes of this machine, or on a Ray cluster."""
