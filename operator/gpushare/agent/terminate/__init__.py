"""Everything that ends a client: departures, `maxWait`, faults, violations, and shortages of borrowed memory."""
