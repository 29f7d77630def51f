"""The ground of the fleet: values, clocks, errors, events, samples and charts."""
