"""How a shard comes back: taken over, rebuilt from topic and ledger, or rewound."""
