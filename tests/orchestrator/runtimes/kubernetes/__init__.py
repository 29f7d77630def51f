"""Tests of workers that are Pods: what their JSON means, how one is made, and what a registry makes of events."""
