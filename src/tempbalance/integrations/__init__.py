"""Temperature balancing in other trainers; importing a module needs its trainer."""
