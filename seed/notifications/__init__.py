"""Events about refusals, and waking those who were refused."""
