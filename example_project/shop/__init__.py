"""Orders, invoices, pictures, imports and reports."""
