"""Records of `.status` about what a service promises, costs, and was planned for.

Holds dataclasses and their enumerations; `status.Status` has one field for each record, and `codec` reads and writes them.
Decides nothing: `domain/slo`, `domain/cost` and `domain/capacity_plan` fill the records.
"""
