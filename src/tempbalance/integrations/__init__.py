"""Temperature balancing in other people's training; each module needs its trainer only when it is imported."""
