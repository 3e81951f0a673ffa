-- What a worker's jobs run on, as JSON (presence.py); NULL: it has not said. It stood in a file of the worker's host before.
ALTER TABLE worker ADD COLUMN device TEXT;
