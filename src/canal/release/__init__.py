"""What any release is, whatever its mechanism: statement, folder, manifest, verification, card."""
