"""Programs that use a shared GPU in the ways people ask about, check their own results and report figures."""
