"""What other projects' suites test of GPU sharing, and what gpushare does there: the cases, and their page."""
