//! Ratios of the helped goodput to the goodput of direct systems and of rivals, round by round.

use super::early_ends::{lower_bound, void_reasons};
use crate::experiments::batch::burst::{Measured, PAPER_SLA_US};
use crate::results::{Ratio, Results};
use crate::scene::System;
use crate::stats::paired_ratios;
use crate::table::us_to_ms;

/// Adds the ratio of helped to direct goodput for each SLA and each limit of the server's CPU (quota or burner), and
/// the A/A ratio: two series of the direct system, measured in the same rounds.
pub(super) fn add_ratios(measured: &Measured, results: &mut Results) {
    let find = |system: System, sla_us: u64, has_burner: bool, is_repetition: bool| {
        measured.series.iter().filter(|series| series.iso_percent.is_none()).find(|series| {
            (series.system, series.sla_us, series.has_burner, series.is_repetition)
                == (system, sla_us, has_burner, is_repetition)
        })
    };
    for helped in measured.series.iter().filter(|series| series.system == System::Helped) {
        let direct = [System::Plain, System::Shimmed];
        let direct =
            direct.into_iter().filter_map(|system| find(system, helped.sla_us, helped.has_burner, false));
        let better = direct
            .filter(|series| series.median().is_some())
            .max_by(|a, b| a.median().partial_cmp(&b.median()).unwrap_or(std::cmp::Ordering::Equal));
        let Some(better) = better else { continue };
        let rounds = paired_ratios(&helped.goodputs(), &better.goodputs());
        let is_main_sla = helped.sla_us == measured.calibration.sla_us;
        let name = match (helped.has_burner, is_main_sla) {
            (true, _) => "goodput_helped_over_direct_burner".to_owned(),
            (false, true) => "goodput_helped_over_direct".to_owned(),
            (false, false) => format!("goodput_helped_over_direct_at_{}us", helped.sla_us),
        };
        let name = format!("{}{name}", measured.prefix);
        let target = expectation(&measured.prefix, helped.sla_us);
        let mut ratio = Ratio::new(&name, &rounds)
            .void_if(void_reasons(better))
            .note(format!("SLA {} ms; against {}; {target}", us_to_ms(helped.sla_us), better.system.name()))
            .note(lower_bound(helped));
        if let (true, Some(percent)) = (helped.has_burner, measured.burnt_percent) {
            ratio = ratio.note(format!(
                "the burner took {percent:.1} % of the server's core; helper and clients shared the other"
            ));
        }
        results.ratios.push(ratio);
    }
    let sla_us = measured.calibration.sla_us;
    if let (Some(first), Some(repetition)) =
        (find(System::Plain, sla_us, false, false), find(System::Plain, sla_us, false, true))
    {
        let rounds = paired_ratios(&repetition.goodputs(), &first.goodputs());
        results.ratios.push(
            Ratio::new(&format!("{}goodput_direct_over_itself", measured.prefix), &rounds)
                .note("A/A: the difference without any change"),
        );
    }
}

/// Adds the ratios of the helped goodput to the goodput of two alternatives, under the calibrated SLA: nutcracker as
/// the proxy, and no proxy but the helper's CPU time for the server (iso-CPU).
pub(super) fn add_rival_ratios(measured: &Measured, results: &mut Results) {
    let sla_us = measured.calibration.sla_us;
    let main = || {
        measured
            .series
            .iter()
            .filter(move |series| series.sla_us == sla_us && !series.has_burner && !series.is_repetition)
    };
    let Some(helped) = main().find(|series| series.system == System::Helped) else { return };
    let nutcracker = main().find(|series| series.system == System::Nutcracker).map(|series| {
        (
            "goodput_helped_over_nutcracker",
            series,
            "nutcracker in the helper's place, one connection to the server".into(),
        )
    });
    let iso = main().find_map(|series| Some((series, series.iso_percent?))).map(|(series, percent)| {
        let note =
            format!("no helper: its CPU time is added to the quota, {percent:.0} % of a core; measured last");
        ("goodput_helped_over_iso_cpu", series, note)
    });
    for (name, rival, note) in nutcracker.into_iter().chain(iso) {
        let rounds = paired_ratios(&helped.goodputs(), &rival.goodputs());
        let ratio = Ratio::new(&format!("{}{name}", measured.prefix), &rounds)
            .void_if(void_reasons(rival))
            .note(note)
            .note(lower_bound(helped));
        results.ratios.push(ratio.note(format!("SLA {} ms", us_to_ms(sla_us))));
    }
}

/// A note: the expected ratio of helped to direct goodput, and the paper's. `prefix` is that of the ratios' names and
/// states the configuration: `xdp_` with the user-level TCP stack, `core_` with a whole core for the server too.
fn expectation(prefix: &str, sla_us: u64) -> &'static str {
    match (prefix, sla_us == PAPER_SLA_US) {
        ("", true) => "expected ≥ 3.3, as in the paper",
        ("", false) => "expected ≥ 5, paper 3.3",
        ("xdp_", true) => "expected ≥ 3.3, as in the paper",
        ("xdp_", false) => "expected ≥ 8, paper 3.3",
        ("core_", true) => "expected ≥ 5, paper 3.3",
        ("core_", false) => "expected ≥ 8, paper 3.3",
        _ => "paper 3.3",
    }
}
