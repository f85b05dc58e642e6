"""Changes of a running application: plan, drain, hand-over, cut."""
