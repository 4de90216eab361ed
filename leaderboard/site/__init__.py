"""The site: everything published and all documents as one folder of static pages."""
