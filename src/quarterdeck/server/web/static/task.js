// A task's page: what changes about it is shown as it happens.
import './app.js';
