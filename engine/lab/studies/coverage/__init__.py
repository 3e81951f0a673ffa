"""The coverage study: do the certificates hold on documents that nothing was fitted on?"""
