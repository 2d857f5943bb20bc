"""The output for users: status (text and JSON), the live screen, the report page, the doctor."""
