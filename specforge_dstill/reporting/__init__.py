"""Results of evaluations as a page: tables in the paper's shapes, intervals, figures."""
