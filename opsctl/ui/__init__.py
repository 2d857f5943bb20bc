"""What users look at: status (text and JSON), the screen that stays, the report page, the doctor."""
