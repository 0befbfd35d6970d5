"""Model-poisoning and data-poisoning attacks, as pure functions on arrays."""
