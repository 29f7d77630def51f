"""What all of the fleet stands on: values, instants, errors, events, figures and how they are drawn."""
