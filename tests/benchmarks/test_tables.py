from benchmarks.peers.results import Measurement, Outcome, Run, merge, merge_measurements
from benchmarks.peers.tables import all_tables, ratio_to_peers, summary_table


def outcome() -> Outcome:
    return Outcome(
        "bert",
        "inference-1",
        [
            Measurement("eager", [0.30, 0.28], 0.4, 500 << 20, 1e-7),
            Measurement("openvino", [0.22], 12.0, 400 << 20, 2e-7),
            Measurement("compile", failure="RuntimeError: no"),
            Measurement("precast", [0.25, 0.24], 5.0, 450 << 20, 1.5e-7),
            Measurement("precast-frozen", [0.20], 5.0, 450 << 20, 1e-7),
        ],
    )


def run() -> Run:
    return Run("2026-01-02", {"processor": "one"}, 1, "wall", [outcome()])


def test_a_time_is_that_of_the_best_slice():
    assert outcome().seconds("eager") == 0.28


def test_the_ratio_is_of_our_faster_way_to_the_fastest_peer():
    assert ratio_to_peers(outcome()) == 0.22 / 0.20


def test_the_fastest_is_bold_and_a_failure_is_told():
    text = all_tables(run())
    assert "| BERT-base | 280 | failed | 220 | 240 | **200** | 1.10x |" in text
    assert "torch.compile: RuntimeError: no" in text


def test_errors_are_multiples_of_eagers():
    assert "| BERT-base | 1.0e-07 | - | 2.00 | 1.50 | 1.00 |" in all_tables(run())


def test_several_runs_are_one_with_the_median_and_a_spread():
    def run_of(seconds):
        return Run("2026-01-02", {}, 1, "wall", [Outcome("bert", "training", [Measurement("eager", [seconds])])])

    merged = merge([run_of(1.0), run_of(1.2), run_of(1.1)])
    assert merged.outcomes[0].seconds("eager") == 1.1
    assert "Medians of 3 runs, which differ by 18.2% (median), 18.2% (most)." in all_tables(merged)


def test_runs_that_were_merged_before_count_each():
    once = Measurement("eager", [2.0], 9.0, 5, 1e-7)
    again = Measurement("eager", [1.0, 1.1], 8.0, runs=[1.0, 1.1], warm_result_seconds=0.5)
    (merged,) = merge_measurements([[once], [again]])
    assert merged.runs == [2.0, 1.0, 1.1]
    assert (merged.first_result_seconds, merged.warm_result_seconds, merged.peak_bytes) == (9.0, 0.5, 5)


def test_one_run_has_no_spread_and_no_warm_start_to_show():
    assert "Medians of" not in all_tables(merge([run()]))
    assert "new process" not in all_tables(run())


def test_a_warm_start_is_shown():
    warm = Run(
        "", {}, 1, "wall", [Outcome("bert", "training", [Measurement("eager", [1.0], warm_result_seconds=0.55)])]
    )
    assert "| BERT-base | 0.55 |" in all_tables(warm)


def test_the_short_table_names_the_fastest_peer():
    assert "| BERT-base | 200 ms; OpenVINO 220 ms; 1.10x |" in summary_table(run())
