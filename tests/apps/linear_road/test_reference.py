"""The reference implementation follows the rules of Linear Road, each stated by a tiny hand-made trace."""

from fractions import Fraction

import pytest

from apps.linear_road.validation.reference import Reference
from apps.linear_road.validation.values import AccidentAlert, Balance, Expenditure, TollNotice

FEET = 5280


def at(time, vid, *, seg=10, lane=1, spd=30, way=0, pos=None, xway=0):
    """A position report; without *pos* the car is somewhere in its segment where no other car and time is."""
    pos = seg * FEET + (vid * 7 + time * 13) % FEET if pos is None else pos
    return (0, time, vid, spd, xway, lane, way, seg, pos, -1, -1, -1, -1, -1, -1)


def balance(time, vid, qid=1):
    """A question for the balance."""
    return (2, time, vid, -1, -1, -1, -1, -1, -1, qid, -1, -1, -1, -1, -1)


def day(time, vid, *, qid=1, xway=0, day=1):
    """A question for the expenditure of one day."""
    return (3, time, vid, -1, xway, -1, -1, -1, -1, qid, -1, -1, -1, -1, day)


def crowd(cars, *, second=0, seg=10, spd=30, **more):
    """So many cars, numbered from 1000, that report once from one segment."""
    return [at(second, 1000 + number, seg=seg, spd=spd, **more) for number in range(cars)]


def standing(vid, begin, reports=4, *, seg=10, lane=2, way=0, spd=0, foot=100):
    """A car that reports from one place every 30 seconds."""
    return [
        at(begin + 30 * number, vid, seg=seg, lane=lane, way=way, spd=spd, pos=seg * FEET + foot)
        for number in range(reports)
    ]


def answers(rows, history=None):
    """What the reference answers to rows in any order."""
    return list(Reference(history or {}).answers(sorted(rows, key=lambda row: row[1])))


def notices(rows, vid):
    """The toll notices of one vehicle by second."""
    return {a.time: a for a in answers(rows) if isinstance(a, TollNotice) and a.vid == vid}


def alerts(rows, vid):
    """(second, accident's segment) of the alerts of one vehicle."""
    return [(a.time, a.number) for a in answers(rows) if isinstance(a, AccidentAlert) and a.vid == vid]


def test_every_first_report_from_a_segment_is_answered():
    """A notice is due on every entry, also when the toll is 0, and not for later reports from there."""
    rows = [at(0, 1, lane=0), at(30, 1), at(60, 1, seg=11), at(90, 1, seg=11)]
    assert [(a.time, a.toll) for a in answers(rows)] == [(0, 0), (60, 0)]


@pytest.mark.parametrize(("second", "toll"), [(59, 0), (60, 2), (119, 2), (120, 0)])
def test_minutes_count_from_one_and_cars_from_the_minute_before(second, toll):
    """Seconds 0..59 are minute 1; its cars make the toll of minute 2, and of no other."""
    assert notices([*crowd(51), at(second, 1)], 1)[second].toll == toll


def test_cars_are_distinct_vehicles():
    """A vehicle that reports twice in a minute is one car: 50 cars are free."""
    rows = [*crowd(50), *crowd(50, second=30), at(60, 1)]
    assert notices(rows, 1)[60].cars == 50
    assert notices(rows, 1)[60].toll == 0


@pytest.mark.parametrize(("cars", "toll"), [(50, 0), (51, 2), (52, 8), (60, 200)])
def test_toll_is_twice_the_square_of_the_cars_above_fifty(cars, toll):
    """Toll = 2 (Cars - 50)^2."""
    assert notices([*crowd(cars), at(60, 1)], 1)[60].toll == toll


def test_rule_1_lav_is_the_mean_of_minute_means_of_vehicle_means():
    """Per vehicle, then per minute, then over the minutes: not the sum of speeds over the number of reports."""
    rows = [at(0, 1, spd=10), at(30, 1, spd=20), at(0, 2, spd=45), at(60, 3, spd=60), at(120, 9)]
    assert notices(rows, 9)[120].lav == (Fraction(15 + 45, 2) + 60) / 2


def test_rule_1_lav_looks_back_five_minutes_and_leaves_empty_ones_out():
    """Minutes m-5..m-1 count; minute m itself and m-6 do not."""
    rows = [at(0, 1, spd=10), at(60, 2, spd=20), at(240, 3, spd=50), at(360, 4, spd=99), at(361, 9)]
    assert notices(rows, 9)[361].lav == Fraction(20 + 50, 2)


@pytest.mark.parametrize(("slower", "toll"), [(1, 2), (0, 0)])
def test_rule_2_the_exact_lav_is_compared(slower, toll):
    """One of 51 cars being slower by 1 mph makes a LAV of 39.98: a toll, which rounding would lose. 40 is free."""
    rows = [*crowd(50, spd=40), at(0, 1, spd=40 - slower), at(60, 9)]
    assert notices(rows, 9)[60].toll == toll


def test_two_cars_stopped_at_one_place_are_an_accident():
    """The alert comes on entering a segment 0..4 upstream, from the minute after the detection."""
    rows = [*standing(1, 0, 20), *standing(2, 0, 20), at(89, 3), at(119, 4), at(120, 5), at(120, 6, seg=6)]
    assert alerts(rows, 3) == []
    assert alerts(rows, 4) == []  # detected at 90, in the same minute 2
    assert alerts(rows, 5) == [(120, 10)]
    assert alerts(rows, 6) == [(120, 10)]


@pytest.mark.parametrize(
    ("way", "seg", "told"),
    [(0, 5, 0), (0, 6, 1), (0, 10, 1), (0, 11, 0), (1, 15, 0), (1, 14, 1), (1, 10, 1), (1, 9, 0)],
)
def test_an_accident_reaches_four_segments_upstream(way, seg, told):
    """Upstream is lower in the east and higher in the west."""
    rows = [*standing(1, 0, 9, way=way), *standing(2, 0, 9, way=way), at(150, 3, seg=seg, way=way)]
    assert len(alerts(rows, 3)) == told


def test_an_alert_comes_once_per_segment_entered():
    """A car that goes on through the reach is told again in each segment, and not again within one."""
    rows = [*standing(1, 0, 12), *standing(2, 0, 12)]
    rows += [at(130, 3, seg=8), at(160, 3, seg=8), at(190, 3, seg=9), at(220, 3, seg=10), at(250, 3, seg=11)]
    assert alerts(rows, 3) == [(130, 10), (190, 10), (220, 10)]


def test_no_alert_in_the_exit_lane():
    """A car that crosses into lane 4 of a segment is told nothing there."""
    rows = [*standing(1, 0, 9), *standing(2, 0, 9), at(130, 3, seg=4), at(160, 3, seg=6, lane=4)]
    assert alerts(rows, 3) == []
    assert list(notices(rows, 3)) == [130]


def test_an_accident_makes_its_reach_free():
    """The toll is 0 while an accident counts, and is back in the minute after the clearing."""
    rows = [row for minute in range(5) for row in crowd(52, second=60 * minute, seg=7)]
    rows += [*standing(1, 0, 7), *standing(2, 0, 8)]  # detected at 90 (minute 2), car 1 moves at 210 (minute 4)
    rows += [at(210, 1)]
    tolls = [notices([*rows, at(second, 9, seg=7)], 9)[second].toll for second in (119, 120, 239, 240)]
    assert tolls == [8, 0, 0, 8]


def test_rule_3_an_accident_counts_until_the_minute_of_the_report_that_shows_movement():
    """Cleared by the report from elsewhere, whichever car makes it; that minute is the last one."""
    rows = [*standing(1, 0, 6), *standing(2, 0, 20), at(185, 1), at(239, 3), at(240, 4)]
    assert alerts(rows, 3) == [(239, 10)]
    assert alerts(rows, 4) == []


def test_rule_4_the_speed_does_not_matter():
    """Cars that say 5 mph and do not move are stopped."""
    rows = [*standing(1, 0, 9, spd=5), *standing(2, 0, 9, spd=5), at(130, 3)]
    assert alerts(rows, 3) == [(130, 10)]


def test_rule_5_the_fourth_report_is_enough():
    """Three reports of the second car are no stop; the fourth is, even if it moves right after it."""
    moving = [*standing(1, 0, 20), at(130, 3)]
    assert alerts([*moving, *standing(2, 0, 3), at(90, 2)], 3) == []
    assert alerts([*moving, *standing(2, 0, 4), at(120, 2)], 3) == [(130, 10)]


def test_stopped_cars_must_stand_there_at_once():
    """The second car's fourth report after the first one has gone is no accident."""
    rows = [*standing(1, 0, 4), at(120, 1), *standing(2, 60, 9), at(190, 3)]
    assert alerts(rows, 3) == []


@pytest.mark.parametrize("other", [{"lane": 3}, {"foot": 101}, {"way": 1}])
def test_another_lane_position_or_direction_is_another_place(other):
    """Two cars standing there are no accident."""
    rows = [*standing(1, 0, 9), *standing(2, 0, 9, **other), at(190, 3), at(190, 4, way=1)]
    assert alerts(rows, 3) == alerts(rows, 4) == []


def test_a_lane_change_at_the_same_position_is_movement():
    """Four reports from one position in two lanes are no stop."""
    swaying = [at(30 * n, 2, lane=2 + n // 2 % 2, pos=10 * FEET + 100) for n in range(9)]
    assert alerts([*standing(1, 0, 20), *swaying, at(270, 3)], 3) == []


def test_the_last_two_of_three_stopped_cars_are_still_an_accident():
    """When one of three leaves, two are stopped at one place at once; when the next leaves, it is cleared."""
    rows = [*standing(1, 0, 5), at(150, 1), *standing(2, 0, 9), at(270, 2), *standing(4, 0, 20)]
    assert alerts([*rows, at(250, 3)], 3) == [(250, 10)]
    assert alerts([*rows, at(300, 3)], 3) == []


def test_rule_6_a_later_accident_in_the_segment_is_a_new_one():
    """Cleared and detected again: between the two there is none."""
    rows = [*standing(1, 0, 4), *standing(2, 0, 5), at(120, 1), at(150, 2)]  # cleared at 120, minute 3
    rows += [*standing(5, 180, 9), *standing(6, 180, 9)]  # detected at 270, minute 5
    rows += [at(180, 7), at(299, 8), at(300, 9)]
    assert [alerts(rows, vid) for vid in (7, 8, 9)] == [[], [], [(300, 10)]]


def test_rule_7_a_vehicle_that_comes_back_into_the_segment_is_answered_again():
    """Lane 4 ends a trip; the next one begins in lane 0, in the same segment or any other, and charges nothing."""
    rows = [*crowd(51), at(60, 1), at(90, 1, lane=4), at(100, 1, lane=0), balance(100, 1)]
    assert list(notices(rows, 1)) == [60, 100]
    assert [a.amount for a in answers(rows) if isinstance(a, Balance)] == [0]


def test_the_toll_is_charged_when_the_segment_is_left():
    """The number told on entering is charged by the report from another segment, whatever holds by then."""
    rows = [*crowd(51), at(60, 1), *crowd(90, second=70), at(150, 1, seg=11)]
    rows += [balance(149, 1, 1), balance(150, 1, 2)]
    assert [a.amount for a in answers(rows) if isinstance(a, Balance)] == [0, 2]


def test_leaving_by_the_ramp_of_the_segment_is_free():
    """Lane 4 in the segment that was entered charges nothing, now or on the next trip."""
    rows = [*crowd(51), at(60, 1), at(90, 1, lane=4), at(120, 1, lane=0, seg=20), at(180, 1, seg=21), balance(200, 1)]
    assert [a.amount for a in answers(rows) if isinstance(a, Balance)] == [0]


def test_rule_8_crossing_straight_into_the_exit_lane_of_the_next_segment_is_charged():
    """Charged for the segment left, and told nothing in the one of the ramp."""
    rows = [*crowd(51), at(60, 1), at(90, 1, seg=11, lane=4), balance(90, 1)]
    assert [a.amount for a in answers(rows) if isinstance(a, Balance)] == [2]
    assert list(notices(rows, 1)) == [60]


def test_a_balance_goes_with_the_vehicle_from_road_to_road():
    """Charges of two trips on two roads add up."""
    rows = [*crowd(51), at(60, 1), at(90, 1, seg=11), at(120, 1, seg=11, lane=4)]
    rows += [(*row[:2], row[2] + 500, *row[3:]) for row in crowd(52, second=130, xway=1, seg=40)]
    rows += [at(200, 1, lane=0, xway=1, seg=40), at(230, 1, xway=1, seg=41), balance(230, 1)]
    assert [a.amount for a in answers(rows) if isinstance(a, Balance)] == [2 + 8]


def test_rule_9_without_history_there_is_no_lav_and_no_toll():
    """In minute 1 nothing is known: even 60 cars are free."""
    notice = notices([*crowd(60), at(30, 1)], 1)[30]
    assert (notice.lav, notice.toll) == (None, 0)


def test_rule_10_ramps_count_in_cars_and_lav():
    """Reports from lanes 0 and 4 are reports."""
    rows = [*crowd(25, lane=0, spd=10), *(at(0, 2000 + n, spd=10) for n in range(26))]
    rows += [at(30, 2000 + n, lane=4, spd=40) for n in range(26)]
    notice = notices([*rows, at(60, 1)], 1)[60]
    assert (notice.cars, notice.lav, notice.toll) == (51, Fraction(25 * 10 + 26 * 25, 51), 2)


def test_rule_11_the_latest_balance_is_after_all_reports_of_the_second():
    """Also when the question stands before the report; those of the last 60 seconds are accepted as well."""
    rows = [*crowd(51), at(60, 1), balance(90, 1, 1), at(90, 1, seg=11), balance(149, 1, 2), balance(150, 1, 3)]
    found = {a.qid: (a.amount, a.accepted) for a in answers(rows) if isinstance(a, Balance)}
    assert found == {1: (2, (0, 2)), 2: (2, (0, 2)), 3: (2, (2,))}


def test_a_balance_of_a_stranger_is_zero():
    """A vehicle that never reported owes nothing."""
    assert answers([balance(5, 77)]) == [Balance(5, 77, 1, 0, (0,))]


def test_an_expenditure_is_the_sum_of_its_day_and_road():
    """Vehicle, day and road all matter."""
    history = {(1, 5, 0): 30, (1, 6, 0): 7, (1, 5, 1): 9, (2, 5, 0): 11}
    assert answers([day(3, 1, day=5)], history) == [Expenditure(3, 1, 1, 30, known=True)]


def test_rule_12_an_expenditure_without_a_row_is_optional():
    """The answer would be 0, and nobody misses it."""
    assert answers([day(3, 1, day=5)]) == [Expenditure(3, 1, 1, 0, known=False)]


def test_rule_13_strays_are_ignored_wholly():
    """A first report in lane 4, and what follows lane 4 but is not lane 0, count nowhere: not in Cars either."""
    strays = [at(0, 5000 + n, lane=4, spd=10) for n in range(40)]
    after = [row for n in range(40) for row in (at(0, 6000 + n, seg=50), at(20, 6000 + n, seg=50, lane=4))]
    after += [at(40, 6000 + n, lane=2) for n in range(40)]
    rows = [*crowd(20), *strays, *after, at(60, 1)]
    notice = notices(rows, 1)[60]
    assert (notice.cars, notice.lav) == (20, 30)
    assert notices(rows, 5000) == {}
    assert list(notices(rows, 6000)) == [0]


def test_rule_13_strays_neither_stop_nor_clear():
    """A stray standing at a stopped car's place makes no accident, and one from elsewhere clears none."""
    stray = [at(0, 2, seg=3), at(1, 2, seg=3, lane=4), *standing(2, 30, 9)]
    assert alerts([*standing(1, 0, 12), *stray, at(310, 3)], 3) == []


def test_rule_14_the_nearest_of_two_accidents_is_told():
    """The own segment first, then the next ones downstream."""
    rows = [*standing(1, 0, 12, seg=10), *standing(2, 0, 12, seg=10), *standing(4, 0, 12, seg=12)]
    rows += [*standing(5, 0, 12, seg=12), at(130, 3, seg=9), at(130, 6, seg=11), at(130, 7, seg=12)]
    assert [alerts(rows, vid) for vid in (3, 6, 7)] == [[(130, 10)], [(130, 12)], [(130, 12)]]


def test_roads_and_directions_are_apart():
    """Cars of the other direction or another road make no toll and no alert."""
    rows = [*crowd(60), at(60, 1, way=1), at(60, 2, xway=1)]
    assert notices(rows, 1)[60].toll == notices(rows, 2)[60].toll == 0


def test_travel_times_are_not_answered():
    """Type 4 is left out."""
    assert answers([(4, 0, 1, -1, 0, -1, -1, -1, -1, 3, 1, 5, 1, 100, -1)]) == []


def test_a_stream_may_be_answered_in_pieces():
    """Several calls continue one stream."""
    rows = [*crowd(51), at(60, 1), at(90, 1, seg=11), balance(91, 1)]
    reference = Reference({})
    pieces = [*reference.answers(rows[:51]), *reference.answers(rows[51:])]
    assert pieces == answers(rows)
