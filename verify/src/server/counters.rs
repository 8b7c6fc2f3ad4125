//! Counters of draft tokens in a server's metrics.

use super::client::{Client, Reply};

/// Draft tokens and accepted ones since the start of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) n_drafted: u64,
    pub(super) n_accepted: u64,
}

impl Counters {
    /// Reads the counters from `/metrics`; `None` if the server has none.
    pub(super) fn read(client: &Client) -> Option<Counters> {
        Counters::parse(&client.get_text("/metrics").ok()?)
    }

    fn parse(text: &str) -> Option<Counters> {
        Some(Counters {
            n_drafted: sum(text, "spec_decode_num_draft_tokens_total")?,
            n_accepted: sum(text, "spec_decode_num_accepted_tokens_total")?,
        })
    }

    /// Adds up the counters of replies.
    pub(super) fn of<'a>(replies: impl Iterator<Item = &'a Reply>) -> Counters {
        let none = Counters {
            n_drafted: 0,
            n_accepted: 0,
        };
        replies.fold(none, |sum, reply| Counters {
            n_drafted: sum.n_drafted.saturating_add(reply.n_drafted),
            n_accepted: sum.n_accepted.saturating_add(reply.n_accepted),
        })
    }

    /// Returns the growth since `earlier`.
    pub(super) fn since(self, earlier: Counters) -> Counters {
        Counters {
            n_drafted: self.n_drafted.saturating_sub(earlier.n_drafted),
            n_accepted: self.n_accepted.saturating_sub(earlier.n_accepted),
        }
    }
}

/// Sums all series of the first metric whose name ends with `name`. A server may have the same counter under
/// several names, and one series per engine.
fn sum(text: &str, name: &str) -> Option<u64> {
    let series = text.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let metric = series.split('{').next()?;
        let value = value.parse::<f64>().ok()?;
        metric.ends_with(name).then_some((metric, value))
    });
    let mut series = series.peekable();
    let (first, _) = *series.peek()?;
    let own = series.filter(|(metric, _)| *metric == first);
    Some(own.map(|(_, value)| value).sum::<f64>() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_and_other_names_ignored() {
        let text = "\
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine=\"0\",model_name=\"a b\"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine=\"1\",model_name=\"a b\"} 5.0
vllm:spec_decode_num_draft_tokens_created{engine=\"0\"} 1.7e9
vllm:spec_decode_num_accepted_tokens_total{engine=\"0\"} 7.0
llamacpp:spec_decode_num_accepted_tokens_total 9
";
        let found = Counters::parse(text);
        assert_eq!(
            found,
            Some(Counters {
                n_drafted: 15,
                n_accepted: 7
            })
        );
        assert_eq!(Counters::parse("# nothing\n"), None);
    }
}
