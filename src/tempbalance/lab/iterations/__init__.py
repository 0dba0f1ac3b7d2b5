"""What trainings that count in iterations have in common; they are evaluated every so many."""
